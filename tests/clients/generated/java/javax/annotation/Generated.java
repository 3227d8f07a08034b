package javax.annotation;

/** Stands for that of jakarta.annotation-api, which is not needed to run what was generated. */
public @interface Generated {
    String[] value();

    String date() default "";

    String comments() default "";
}
